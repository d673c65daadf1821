{{/* Names, labels, and the parts that the relay, its jobs and its check share. */}}

{{- define "walrelay.name" -}}
{{- .Values.fullnameOverride | default (ternary .Release.Name (printf "%s-%s" .Release.Name (.Values.nameOverride | default .Chart.Name)) (contains (.Values.nameOverride | default .Chart.Name) .Release.Name)) | trunc 52 | trimSuffix "-" -}}
{{- end }}

{{- define "walrelay.selector" -}}
app.kubernetes.io/name: {{ .Values.nameOverride | default .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "walrelay.labels" -}}
{{ include "walrelay.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "walrelay.image" -}}
{{- $image := .Values.image -}}
{{- $repository := required "set image.repository to where you pushed the image that docker/Dockerfile builds" $image.repository -}}
{{- if $image.digest }}{{ $repository }}@{{ $image.digest }}{{ else }}{{ $repository }}:{{ $image.tag | default .Chart.AppVersion }}{{ end -}}
{{- end }}

{{- define "walrelay.source" -}}
{{- required "set settings.source, such as postgres://walrelay@postgres/shop?sslmode=verify-full" .Values.settings.source -}}
{{- end }}

{{- define "walrelay.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "walrelay.name" .) }}{{ else }}{{ .Values.serviceAccount.name | default "default" }}{{ end -}}
{{- end }}

{{/* What every pod of the chart has. */}}
{{- define "walrelay.pod" -}}
automountServiceAccountToken: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  # So that the user may read the files of secrets.
  fsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What every container of the chart has. */}}
{{- define "walrelay.container" -}}
image: {{ include "walrelay.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: ["ALL"]
{{- end }}

{{/* The volumes that certificates of Postgres' and Kafka's authorities come from. */}}
{{- define "walrelay.caVolumes" -}}
{{- range $name, $ca := .Values.ca }}
{{- if or $ca.configMap $ca.secret }}
- name: ca-{{ $name }}
  {{- if $ca.configMap }}
  configMap:
    name: {{ $ca.configMap }}
  {{- else }}
  secret:
    secretName: {{ $ca.secret }}
  {{- end }}
    items:
      - key: {{ $ca.key }}
        path: ca.crt
{{- end }}
{{- end }}
{{- end }}

{{- define "walrelay.caMounts" -}}
{{- range $name, $ca := .Values.ca }}
{{- if or $ca.configMap $ca.secret }}
- name: ca-{{ $name }}
  mountPath: /etc/walrelay/ca/{{ $name }}
  readOnly: true
{{- end }}
{{- end }}
{{- end }}

{{- define "walrelay.caEnv" -}}
{{- if or .Values.ca.postgres.configMap .Values.ca.postgres.secret }}
- name: PGSSLROOTCERT
  value: /etc/walrelay/ca/postgres/ca.crt
{{- end }}
{{- end }}

{{/* Where the password of Postgres is. Takes a list of the context, the secret's name and its key. */}}
{{- define "walrelay.passwordEnv" -}}
{{- $secret := index . 1 }}{{ $key := index . 2 -}}
{{- if and $secret $key }}
- name: WALRELAY_SOURCE_PASSWORD_FILE
  value: /run/secrets/walrelay/{{ $key }}
{{- end }}
{{- end }}

{{/* The volume that it is in, for the jobs. Takes the same. */}}
{{- define "walrelay.passwordVolume" -}}
{{- $secret := index . 1 }}{{ $key := index . 2 -}}
{{- if and $secret $key }}
- name: secrets
  secret:
    secretName: {{ $secret }}
    defaultMode: 0440
    items:
      - key: {{ $key }}
        path: {{ $key }}
{{- end }}
{{- end }}

{{- define "walrelay.passwordMount" -}}
{{- if and (index . 1) (index . 2) }}
- name: secrets
  mountPath: /run/secrets/walrelay
  readOnly: true
{{- end }}
{{- end }}

{{/* The environment of the relay, and of `check`. */}}
{{- define "walrelay.env" -}}
{{- include "walrelay.passwordEnv" (list . .Values.secret.name .Values.secret.postgresPasswordKey) }}
{{- include "walrelay.caEnv" . }}
{{- with .Values.env }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Which shard a pod of the StatefulSet is: its ordinal is at the end of its name. */}}
{{- define "walrelay.shardEnv" -}}
{{- if .Values.shards }}
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: WALRELAY_SHARD
  value: $(POD_NAME)/{{ .Values.shards }}
{{- end }}
{{- end }}

{{/* A check as the first shard looks at the others, too. */}}
{{- define "walrelay.firstShardEnv" -}}
{{- if .Values.shards }}
- name: WALRELAY_SHARD
  value: 0/{{ .Values.shards }}
{{- end }}
{{- end }}

{{/* Arguments that name files, which the relay and `check` share. */}}
{{- define "walrelay.fileArgs" -}}
- --config
- /etc/walrelay/walrelay.toml
{{- range $property, $key := .Values.secret.kafkaFiles }}
- -X
- {{ $property }}=@/run/secrets/walrelay/{{ $key }}
{{- end }}
{{- if or .Values.ca.kafka.configMap .Values.ca.kafka.secret }}
- -X
- ssl.ca.location=/etc/walrelay/ca/kafka/ca.crt
{{- end }}
{{- with .Values.args }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "walrelay.mounts" -}}
- name: settings
  mountPath: /etc/walrelay/walrelay.toml
  subPath: walrelay.toml
  readOnly: true
{{- if .Values.secret.name }}
- name: secrets
  mountPath: /run/secrets/walrelay
  readOnly: true
{{- end }}
{{- include "walrelay.caMounts" . }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "walrelay.volumes" -}}
- name: settings
  configMap:
    name: {{ include "walrelay.name" . }}
{{- with .Values.secret.name }}
- name: secrets
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- include "walrelay.caVolumes" . }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* A container that runs `walrelay check` with the relay's settings. Takes a list of the context and the variables of its shard. */}}
{{- define "walrelay.check" -}}
{{- $shard := index . 1 }}
{{- with index . 0 -}}
- name: check
  {{- include "walrelay.container" . | nindent 2 }}
  args:
    - check
    {{- include "walrelay.fileArgs" . | nindent 4 }}
  {{- with print (include "walrelay.env" .) $shard | trim }}
  env:
    {{- . | nindent 4 }}
  {{- end }}
  volumeMounts:
    {{- include "walrelay.mounts" . | nindent 4 }}
{{- end }}
{{- end }}
