{{- define "longshore.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "longshore.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "longshore.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Labels by which pods are found. Takes a list: the top, and the component. */ -}}
{{- define "longshore.selector" -}}
{{- $top := index . 0 -}}
app.kubernetes.io/name: {{ include "longshore.name" $top }}
app.kubernetes.io/instance: {{ $top.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "longshore.labels" -}}
{{- $top := index . 0 -}}
{{ include "longshore.selector" . }}
app.kubernetes.io/version: {{ $top.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $top.Release.Service }}
app.kubernetes.io/part-of: longshore
helm.sh/chart: {{ printf "%s-%s" $top.Chart.Name $top.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "longshore.image" -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}

{{- define "longshore.account.controller" -}}
{{- $own := .Values.controller.serviceAccount -}}
{{- default (ternary (printf "%s-controller" (include "longshore.fullname" .)) "default" $own.create) $own.name -}}
{{- end -}}

{{- define "longshore.account.node" -}}
{{- $own := .Values.node.serviceAccount -}}
{{- default (ternary (printf "%s-node" (include "longshore.fullname" .)) "default" $own.create) $own.name -}}
{{- end -}}

{{- /* "true" where snapshots are taken. */ -}}
{{- define "longshore.snapshots" -}}
{{- $enabled := toString .Values.sidecars.snapshotter.enabled -}}
{{- $controller := index .Values "snapshot-controller" -}}
{{- $brought := and $controller.enabled (dig "crds" "install" true $controller) -}}
{{- if eq $enabled "auto" -}}
{{- if or $brought (.Capabilities.APIVersions.Has "snapshot.storage.k8s.io/v1/VolumeSnapshotContent") -}}true{{- end -}}
{{- else if eq $enabled "true" -}}true{{- end -}}
{{- end -}}

{{- define "longshore.driverName" -}}
{{- $top := index . 0 -}}
{{- $which := index . 1 -}}
{{- (index $top.Values $which).driverName -}}
{{- end -}}

{{- /* Environment of every container. */ -}}
{{- define "longshore.env" -}}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- name: NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_UID
  valueFrom: {fieldRef: {fieldPath: metadata.uid}}
{{- end -}}

{{- /*
One sidecar. Takes a dict: top, name (of the container and program), values, args, env (more of it), port
(of metrics and health; 0 for none), health (a path for a liveness probe).
*/ -}}
{{- define "longshore.sidecar" -}}
- name: {{ .name }}
  image: {{ include "longshore.image" .top }}
  imagePullPolicy: {{ .top.Values.image.pullPolicy }}
  args:
  - {{ .program }}
  - -v={{ .top.Values.logLevel }}
  - --csi-address=/csi/csi.sock
  {{- range .args }}
  - {{ . | quote }}
  {{- end }}
  {{- if .port }}
  - --http-endpoint=:{{ .port }}
  {{- end }}
  {{- range .values.additionalArgs }}
  - {{ . | quote }}
  {{- end }}
  env:
  {{- include "longshore.env" .top | nindent 2 }}
  {{- with .env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- if .port }}
  ports:
  - {name: {{ .portName }}, containerPort: {{ .port }}, protocol: TCP}
  {{- end }}
  {{- with .health }}
  livenessProbe:
    httpGet: {path: {{ . }}, port: {{ $.portName }}}
    initialDelaySeconds: 10
    periodSeconds: 20
    timeoutSeconds: 10
  {{- end }}
  volumeMounts:
  - {name: socket, mountPath: /csi}
  {{- with .mounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  resources: {{- toYaml .values.resources | nindent 4 }}
  securityContext: {{- toYaml .values.securityContext | nindent 4 }}
{{- end -}}

{{- /* What pods have in common. Takes a list: the top, and the values of controller or node. */ -}}
{{- define "longshore.pod" -}}
{{- $top := index . 0 -}}
{{- $values := index . 1 -}}
{{- with $top.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 0 }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds }}
{{- with $values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* The container of a driver. Takes a dict: top, which, args, mounts, port. */ -}}
{{- define "longshore.driver" -}}
{{- $values := index .top.Values .which -}}
- name: driver
  image: {{ include "longshore.image" .top }}
  imagePullPolicy: {{ .top.Values.image.pullPolicy }}
  args:
  - driver
  - -v={{ .top.Values.logLevel }}
  - --endpoint=unix:///csi/csi.sock
  - --node-id=$(NODE_NAME)
  - --kind={{ .which }}
  - --driver-name={{ $values.driverName }}
  - --max-volumes={{ $values.maxVolumes }}
  - --default-fstype={{ $values.defaultFsType }}
  {{- range .args }}
  - {{ . | quote }}
  {{- end }}
  {{- range $values.additionalArgs }}
  - {{ . | quote }}
  {{- end }}
  env:
  {{- include "longshore.env" .top | nindent 2 }}
  {{- with .env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  ports:
  - {name: healthz, containerPort: {{ .port }}, protocol: TCP}
  # Answered by the liveness probe's container, which asks the driver.
  livenessProbe:
    httpGet: {path: /healthz, port: healthz}
    initialDelaySeconds: 10
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 5
  # The default is in /dev, which is the node's here: an empty file would stay there.
  terminationMessagePath: /tmp/termination-log
  volumeMounts:
  {{- toYaml .mounts | nindent 2 }}
  resources: {{- toYaml .top.Values.driver.resources | nindent 4 }}
  securityContext: {{- toYaml .top.Values.driver.securityContext | nindent 4 }}
{{- end -}}

{{- define "longshore.tolerations" -}}
{{- if .tolerateAllTaints -}}
tolerations:
- operator: Exists
{{- else -}}
{{- with .tolerations -}}
tolerations: {{- toYaml . | nindent 0 }}
{{- end -}}
{{- end -}}
{{- end -}}
